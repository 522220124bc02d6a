"""Dispatch: which strategy wins at which message size, what crosses which link, how much of the layer that is."""

from dashboard.show import open_page, show_figure, show_findings

ABOUT = ("dispatch strategy", "communication", "Times of this processor")


def main() -> None:
    view = open_page("Dispatch", "Which dispatch wins on this network, and how much of the layer it eats.")
    if view is None:
        return
    show_findings(view, about=ABOUT)
    for name in ("message_size", "comm_share", "links", "stages"):
        show_figure(name, view)


main()
