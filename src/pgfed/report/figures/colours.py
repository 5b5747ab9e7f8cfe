"""The colours of every figure, on the page and on paper, in the light and in the dark.

Specifications carry the light ones; the page puts their twins in their place in the dark. Each can
be read as text on the page it is for (a contrast of at least 4.5, tested), and neighbours differ
for colour-blind readers too.
"""

from __future__ import annotations

PAPER, PAPER_DARK = "#fdfcfa", "#15181b"  # what they are drawn on: --paper of the page

BLUE, VERMILLION, GREY = "#0072B2", "#B84B00", "#646B76"
AMBER, MAGENTA, GREEN, PURPLE, TEAL = "#8F6400", "#A8437F", "#00795A", "#6A51B8", "#0B7285"
PALETTE = (VERMILLION, GREEN, MAGENTA, AMBER, PURPLE, TEAL)  # of methods on trial, in this order
INK = "#1C1F23"  # words, and thin marks over areas
PALE = "#7FB3D9"  # beside blue: areas, never text or a line
STONE = "#A9AEB5"  # areas under thin marks

DARK = {
    BLUE: "#6DB9EA",
    VERMILLION: "#FF9A57",
    GREY: "#A3A9B0",
    AMBER: "#F0B429",
    MAGENTA: "#E89AC7",
    GREEN: "#3CCB9C",
    PURPLE: "#B3A1F2",
    TEAL: "#5FD0DE",
    INK: "#E8E6E1",
    PALE: "#35648A",
    STONE: "#6B727A",
}

# Heat maps: few is light and many dark, on either page. Nothing at all is the page itself; a pair
# that never met is a grey that neither a small change nor a large one comes near.
SEQUENTIAL = [[0, "#A6C8E4"], [0.5, "#5B97C8"], [1, "#14528C"]]
DIVERGING = [[0, VERMILLION], [0.25, "#DE9B6B"], [0.5, "#F4F1EA"], [0.75, "#74B0D4"], [1, BLUE]]
NEVER_MET, NEVER_MET_DARK = "#8D939A", "#33393F"
