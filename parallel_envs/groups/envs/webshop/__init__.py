"""WebShop: search a product, look at it, choose its options, buy it.

`env` is the environment: its views, their pages, and where a click leads. `products` reads files in WebShop's format
and says how well a purchase meets a wish. `shop` searches products and keeps large shops on disk.
"""

from parallel_envs.groups.envs.webshop.env import WebShopConfig, WebShopEnv

__all__ = ["WebShopConfig", "WebShopEnv"]
