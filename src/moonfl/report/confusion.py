"""The figure of a group's confusion matrix."""

import numpy as np

from .curves import describe_setting, seed_count
from .groups import Group
from .rendering import Picture, render
from .statistics import confusion_shares
from .style import draw_cells, figure_style, label_classes, new_figure, text_colour

MAX_NAMED_CLASSES = 20


def confusion_matrix(name: str, group: Group) -> Picture | None:
    """Return a heat map of true and predicted classes; None if no confusion was recorded."""
    shares = confusion_shares(group)
    if shares is None:
        return None
    count = len(shares)
    names = group.class_names(count)
    with figure_style():
        title = f"Confusion matrix: {group.label}"
        figure, axes = new_figure(title, describe_setting([group]), height=3.9)
        draw_cells(axes, shares, 1)
        axes.set(xlabel="predicted class", ylabel="true class")
        if count <= MAX_NAMED_CLASSES:
            label_classes(axes, names)
            axes.set_yticks(range(count), names)
            size = 8 if count <= 12 else 6
            for (i, k), share in np.ndenumerate(shares):
                if np.isnan(share):  # the class has no test samples
                    continue
                text, colour = f"{100 * share:.0f}", text_colour(share)
                axes.text(k, i, text, ha="center", va="center", fontsize=size, color=colour)
    mistakes = shares - np.diag(shares.diagonal())
    true, predicted = np.unravel_index(int(np.nanargmax(mistakes)), mistakes.shape)
    caption = (
        "Predictions for the test samples of each true class (row), in percent of the row, over "
        f"{seed_count(group)}. Most frequent mistake: {names[true]} classified as "
        f"{names[predicted]}, {100 * mistakes[true, predicted]:.0f} %."
    )
    mean = 100 * np.nanmean(shares.diagonal())
    alt = (
        f"Heat map of {count} by {count} classes for {group.label}; "
        f"mean of the diagonal {mean:.1f} %."
    )
    return render(name, figure, caption, alt)
