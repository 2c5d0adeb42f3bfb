"""Show layouts and plans: one tree, as SVG files, HTML pages, and views in notebooks.

```
view(layout | plan) -> Part, the root of a tree        -> facts | html_page | svg_picture
```

Core rooms do not depend on this room. `promptcache` calls `register` when it is imported in IPython.
"""

from promptcache.picture.html import HTML_STYLE, html_page, register
from promptcache.picture.part import Part, PartKind, Use, facts, title
from promptcache.picture.svg import svg_picture
from promptcache.picture.view import view

__all__ = ["HTML_STYLE", "Part", "PartKind", "Use", "facts", "html_page", "register", "svg_picture", "title", "view"]
