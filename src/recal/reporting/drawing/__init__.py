"""Two ways of drawing the objects of `reporting.data`: SVG for the page, matplotlib for papers. Neither computes.

Both stay: the page's charts follow its style sheet and are read aloud, and need no extra; papers take PDF, and
researchers change figures with the library that they know.
"""
