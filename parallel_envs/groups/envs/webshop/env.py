"""The shop as an environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parallel_envs.groups.envs.facts import Step, StepCount, facts
from parallel_envs.groups.envs.tiles import text_only
from parallel_envs.groups.envs.webshop.config import WebShopConfig
from parallel_envs.groups.envs.webshop.goals import Goal, goal_of
from parallel_envs.groups.envs.webshop.pages import actions_on, as_rich_text, as_text, page_of
from parallel_envs.groups.envs.webshop.reward import Score, score
from parallel_envs.groups.envs.webshop.shop import shop_for, wishes_for
from parallel_envs.groups.envs.webshop.views import Bought, Results, Searching, View, clicked
from parallel_envs.seeding import SeedTree

_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_MOST_CHARS = 1000


class WebShopEnv:
    """Find a product in a shop, choose its options, and buy it.

    Actions are texts: `search[words]` where there is a search bar, and `click[...]` with what the page has to click:
    `click[back to search]`, `click[next >]`, `click[< prev]`, an asin, an option, `click[description]`,
    `click[features]`, `click[reviews]`, `click[buy now]`. Upper and lower case are the same. Anything else leaves the
    page as it is (`action_is_valid` False). `available_actions()` tells them all, as does each state
    (`show_actions`).

    Buying pays how well the purchase meets what was wanted and terminates the episode: attributes, options, price and
    the kind of product, as WebShop counts them (see `reward`). `success` is a purchase that meets it in all. With
    `reward="sparse"`, as in RAGEN, that alone pays. The search is BM25 over the products' texts, and shows no buttons
    that lead to empty pages; options are forgotten when another product is looked at. Files are read when the env is
    made.

    `goal` is what is wanted, for oracles; states tell its instruction only.
    """

    uses_global_random = False
    action_lookup: Mapping[Any, str] | None = None
    goal: Goal

    def __init__(self, config: WebShopConfig | None = None) -> None:
        self.config = config or WebShopConfig()
        self._shop = shop_for(self.config)
        self._training, self._validation = (wishes_for(self.config, training=one) for one in (True, False))
        self._count = StepCount(self.config.max_steps)
        self._view: View = Searching()
        self._score: Score | None = None

    def reset(self, seed: int, mode: str = "train") -> str:
        generator = SeedTree(seed).child("webshop").generator()
        wishes = self._training if mode == "train" else self._validation
        self.goal = goal_of(wishes[int(generator.integers(len(wishes)))], generator)
        self._view, self._score = Searching(), None
        self._count.start()
        return self.render()

    def step(self, action: Any) -> Step:
        self._count.tick()
        before = self._view
        after = self._led_to(action)
        if after is not None:
            self._view = after
        if isinstance(self._view, Bought):
            item = self._view.item
            self._score = score(item.product, item.chosen, self.goal)
        truncated = self._count.close(self._score is not None)
        return self.render(), self._paid(), self._score is not None, truncated, self._info(after is not None, before)

    def _led_to(self, action: Any) -> View | None:
        """The view that an action leads to; None where it cannot be done."""
        found = _ACTION.fullmatch(action) if isinstance(action, str) and len(action) <= _MOST_CHARS else None
        if found is None:
            return None
        verb, words = found[1].lower(), found[2].strip()
        if verb == "click":
            return clicked(self._view, words.lower(), self.config.show_attrs)
        return self._found(words) if words and isinstance(self._view, Searching) else None

    def _found(self, words: str) -> Results:
        numbers = self._shop.index.search(words, self.config.num_results)
        return Results(tuple(self._shop.products[number] for number in numbers), self.config.page_size)

    def _paid(self) -> float:
        if self._score is None:
            return 0.0
        return self._score.total if self.config.reward == "dense" else float(self._success)

    @property
    def _success(self) -> bool:
        return self._score is not None and self._score.total >= 1.0

    def _info(self, valid: bool, before: View) -> dict[str, Any]:
        effective = valid and self._view != before
        return facts(success=self._success, valid=valid, effective=effective)

    def available_actions(self) -> tuple[str, ...]:
        """All that can be done now; `search[<content>]` stands for every search."""
        return actions_on(self._page())

    def _page(self) -> Any:
        return page_of(self._view, self.goal.instruction, self.config.show_attrs)

    def render(self, mode: str | None = None) -> str:
        """The page."""
        text_only(mode)
        page = self._page()
        words = as_text(page) if self.config.observation_mode == "text" else as_rich_text(page)
        if not self.config.show_actions or isinstance(self._view, Bought):
            return words
        return f"{words}\nAvailable actions: {', '.join(actions_on(page))}"

    def metrics(self) -> Mapping[str, float]:
        """Whether something was bought, and the parts of what it was worth."""
        if self._score is None:
            return {"bought": 0.0, "task_score": 0.0}
        return {
            "bought": 1.0,
            "task_score": self._score.total,
            "type_score": self._score.type,
            "attributes_score": self._score.attributes,
            "options_score": self._score.options,
            "price_score": self._score.price,
        }

    def close(self) -> None:
        """Nothing is held: a shop belongs to all envs of its process."""
