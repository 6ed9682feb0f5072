"""Figures of one value a name: groups, classes or parties down the side, values across."""

import numpy as np

from .comparisons import baseline
from .curves import short_label, subtitle
from .groups import Group
from .rendering import Picture, render
from .statistics import confusion, final, finals, held_out, party_values, per_round, reach
from .style import (
    COLOURS,
    INK,
    figure_style,
    integer_ticks,
    label_rows,
    legend,
    line_style,
    marker_style,
    new_figure,
)
from .tables import percent, significant_digits

MANY = 24  # names that fit down one side


def tall(names: int) -> float:
    return 1.35 + 0.27 * names


def final_accuracy(name: str, groups: list[Group]) -> Picture:
    with figure_style():
        figure, axes = new_figure("Final test accuracy", subtitle(groups), tall(len(groups)))
        for k, g in enumerate(groups):
            mean_std = final(g)
            axes.plot(
                100 * finals(g), [k] * len(g.runs), ls="", marker="|", ms=9, color=INK, alpha=0.5
            )
            error = 100 * mean_std.std if mean_std.std is not None else None
            axes.errorbar(
                100 * mean_std.mean, k, xerr=error, capsize=3, ms=7, **marker_style(g.style)
            )
        label_rows(axes, [f"{short_label(g, groups)} ({len(g.runs)})" for g in groups])
        axes.set_xlabel("test accuracy after the last round, %")
        axes.margins(x=0.08)
        said = "Test accuracy of the last round: mean and deviation over seeds (their number in brackets); "
        said += "each short stroke is a seed."
        ends = ", ".join(f"{g.label} {percent(final(g).mean)} %" for g in groups)
        return render(name, figure, said, f"Dot chart of final test accuracy: {ends}.")


def to_target(name: str, groups: list[Group], target: float) -> Picture | None:
    groups = [g for g in groups if g.federated]
    if not groups:
        return None
    with figure_style():
        figure, axes = new_figure(
            f"Rounds to {percent(target)} % accuracy", subtitle(groups), tall(len(groups))
        )
        ends = []
        for k, g in enumerate(groups):
            rounds = [hit.round for hit in reach(g, target) if hit]
            missed = len(g.runs) - len(rounds)
            if rounds:
                mean = float(np.mean(rounds))
                axes.barh(k, mean, height=0.5, color=COLOURS[g.style % len(COLOURS)], alpha=0.25)
                axes.plot(
                    rounds, [k] * len(rounds), ls="", ms=6, alpha=0.9, **marker_style(g.style)
                )
            if missed:
                where = max(rounds, default=0)
                axes.annotate(
                    f"{missed} of {len(g.runs)} not reached",
                    (where, k),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            ends.append(f"{g.label} {', '.join(map(str, rounds)) or 'not reached'}")
        label_rows(axes, [short_label(g, groups) for g in groups])
        axes.set_xlim(0, max(len(run.rounds) for g in groups for run in g.runs) * 1.04)
        axes.set_xlabel("rounds")
        integer_ticks(axes)
        said = f"The first round with a test accuracy of {percent(target)} % or more: a mark a seed, the bar is the mean "
        said += "of the seeds that reach it."
        return render(name, figure, said, f"Bar chart of rounds to the target: {'; '.join(ends)}.")


def cost(name: str, groups: list[Group]) -> Picture | None:
    there = [
        (g, found)
        for g in groups
        if g.federated and (found := per_round(g, "cpu_seconds")) is not None
    ]
    if not there:
        return None
    with figure_style():
        figure, axes = new_figure("Processor seconds a round", subtitle(groups), tall(len(there)))
        for k, (g, mean_std) in enumerate(there):
            axes.barh(
                k,
                mean_std.mean,
                height=0.55,
                color=COLOURS[g.style % len(COLOURS)],
                xerr=mean_std.std,
                ecolor=INK,
                error_kw={"elinewidth": 0.8},
            )
            base = baseline(g, groups)
            before = per_round(base, "cpu_seconds") if base else None
            times = (
                f" = {mean_std.mean / before.mean:.2f} × FedAvg" if before and before.mean else ""
            )
            axes.annotate(
                significant_digits(mean_std.mean) + times,
                (mean_std.mean + (mean_std.std or 0), k),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        label_rows(axes, [short_label(g, groups) for g, _ in there])
        axes.set_xlim(0, 1.45 * max(mean_std.mean for _, mean_std in there) or 1)
        axes.set_xlabel("seconds")
        ends = ", ".join(
            f"{g.label} {significant_digits(mean_std.mean)} s" for g, mean_std in there
        )
        said = "Processor time of a round, summed over its parties: mean and deviation over seeds."
        return render(name, figure, said, f"Bar chart of processor seconds a round: {ends}.")


def compare(
    name: str, groups: list[Group], title: str, what: str, values: list[dict[str, float]], said: str
) -> Picture | None:
    """A mark a group on each name; where there are too many names, the sorted values as a curve."""
    there = [(g, v) for g, v in zip(groups, values, strict=True) if v]
    if not there:
        return None
    names = list(dict.fromkeys(key for _, v in there for key in v))
    with figure_style():
        many = len(names) > MANY
        figure, axes = new_figure(
            title, subtitle(groups), 3.4 if many else tall(len(names)) + 0.12 * len(there)
        )
        for g, found in there:
            if many:
                axes.plot(
                    range(1, len(found) + 1),
                    sorted(found.values()),
                    label=short_label(g, groups),
                    **line_style(g.style),
                )
            else:
                rows = [names.index(key) for key in found]
                axes.plot(
                    list(found.values()),
                    rows,
                    ls="",
                    ms=6,
                    alpha=0.85,
                    label=short_label(g, groups),
                    **marker_style(g.style),
                )
        if many:
            axes.set(xlabel="place, from the lowest", ylabel=what)
            said += f" The {len(names)} values of each method are sorted."
        else:
            label_rows(axes, names)
            axes.grid(axis="y", visible=True)
            axes.set_xlabel(what)
        legend(figure, axes)
        ends = ", ".join(
            f"{g.label} from {min(v.values()):.3g} to {max(v.values()):.3g}" for g, v in there
        )
        return render(name, figure, said, f"Dot chart, {what}: {ends}.")


def classes(name: str, groups: list[Group]) -> Picture | None:
    values = []
    for g in groups:
        shares = confusion(g)
        right = [] if shares is None else [float(share) for share in 100 * shares.diagonal()]
        values.append(dict(zip(g.class_names(len(right)), right, strict=True)))
    said = "The share of the test samples of each class that the final model recognises, over all seeds."
    return compare(
        name, groups, "Accuracy per class", "test accuracy of the class, %", values, said
    )


def parties(name: str, groups: list[Group], key: str) -> Picture | None:
    """One of the facts that are known per party at the end of a run."""
    title, what, said = {
        "accuracy": (
            "Accuracy per party",
            "accuracy on the party's own data, %",
            "The final global model on each party's own training data, mean over seeds.",
        ),
        "held-out": (
            "Accuracy per party, held out",
            "accuracy on what the party holds out, %",
            "The final global model on the test samples that each party holds out, mean over seeds.",
        ),
        "distance": (
            "Distance per party",
            "distance ||w_i - w||",
            "How far each party's last local model ended from the global one, mean over seeds.",
        ),
        "similarity": (
            "Similarity of representations",
            "mean cosine of z and z_glob",
            "How alike the last local and the global model represent test samples; 1 is alike.",
        ),
    }[key]
    factor = 100 if key in ("accuracy", "held-out") else 1
    found = [held_out(g) if key == "held-out" else party_values(g, key) for g in groups]
    values = [
        {g.party(p): factor * v for p, v in of.items()} for g, of in zip(groups, found, strict=True)
    ]
    return compare(name, groups, title, what, values, said)
