"""WebShop: search a product, look at it, choose its options, buy it.

`catalogue` reads products and `goals` what is wanted of them, from files in WebShop's format; `shop` holds both, and
`ranking` searches them. `views` says what is on the screen and what a click leads to, `pages` puts that in words;
`reward` says how well a purchase meets what was wanted, by the `likeness` of texts; `env` is the environment.
"""

from parallel_envs.groups.envs.webshop.config import WebShopConfig
from parallel_envs.groups.envs.webshop.env import WebShopEnv

__all__ = ["WebShopConfig", "WebShopEnv"]
