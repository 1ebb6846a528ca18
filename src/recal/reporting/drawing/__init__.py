"""Two ways of drawing the objects of `report.data`: SVG for the page, matplotlib for papers. Neither computes."""
