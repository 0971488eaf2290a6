"""WebShop: search a product, look at it, choose its options, buy it.

`env` is the environment. `shop` reads files in WebShop's format into `products` and wishes, keeps large ones on disk,
and `search` finds products. `pages` says what the screen shows and where a click leads, and `reward` how well a
purchase meets the wish.
"""

from parallel_envs.groups.envs.webshop.env import WebShopConfig, WebShopEnv

__all__ = ["WebShopConfig", "WebShopEnv"]
