"""Roofline: what holds each cell back, arithmetic or memory."""

from dashboard.data import figure
from dashboard.show import draw, open_page


def main() -> None:
    view = open_page("Roofline", "How far is each cell from what its device can do?")
    if view is not None:
        draw("roofline", figure("roofline", view.info.path, view.changed, view.chosen))


main()
