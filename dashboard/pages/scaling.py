"""Scaling: throughput per GPU and efficiency over the number of GPUs."""

from dashboard.data import figure
from dashboard.show import draw, open_page, show_figure


def main() -> None:
    view = open_page("Scaling", "What does each further GPU bring, and where does it stop paying?")
    if view is None:
        return
    draw("scaling", figure("scaling", view.info.path, view.changed, view.chosen))
    show_figure("comm_share", view)


main()
