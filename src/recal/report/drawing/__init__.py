"""From numbers to pictures: SVG for the page, matplotlib for files."""
