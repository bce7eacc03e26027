"""How `make docs` makes a site of these pages."""

project = "RaNNC"
html_title = "RaNNC"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "gpu"]
autodoc_member_order = "bysource"
