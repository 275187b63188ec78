"""How `make docs` builds the site. Pages that the package can write itself are made by `_site`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_site"), str(HERE.parent / "src")]

import shoal  # noqa: E402

project = "shoal"
author = copyright = "the shoal developers"  # noqa: A001
version = release = shoal.__version__

extensions = ["myst_parser", "mathml", "pages"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_site"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
html_math_renderer = "mathml"

html_theme = "furo"
html_title = f"shoal {release}"
html_extra_path = ["_build/extra"]
html_static_path = ["_static"]
html_css_files = ["shoal.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
