"""What a run says at its end."""

from .recorder import Result


def summarise_result(result: Result) -> str:
    last, best = result.rounds[-1], result.best
    spread = f" ± {100 * last['accuracy_std']:.1f} over parties" if "accuracy_std" in last else ""
    lines = [
        f"accuracy {percent(last['accuracy'])}{spread} after round {last['round']} "
        f"(best {percent(best['accuracy'])} in round {best['round']}); results in {result.directory}"
    ]
    if "macro_f1" in last:  # older runs have none
        lines.append(
            f"macro-F1 {percent(last['macro_f1'])}, balanced accuracy {percent(last['balanced_accuracy'])}"
        )
    if "sites" in last:
        lines.append(by_party(last["sites"], result.names))
    if result.chosen is not None:
        lines.append(chosen(result))
    return "\n".join(lines)


def by_party(sites: dict[str, list[int]], names: tuple[str, ...]) -> str:
    shares = [
        (right / number, names[int(i)] if names else f"party {i}")
        for i, (right, number) in sites.items()
    ]
    (low, worst), (high, best) = min(shares), max(shares)
    found = f"lowest {percent(low)} ({worst}), highest {percent(high)} ({best})"
    return f"on what each of {len(sites)} parties holds out: {found}"


def chosen(result: Result) -> str:
    fact, done = result.chosen or {}, len(result.rounds)
    early = (
        ""
        if done == result.experiment.rounds
        else f"; stopped after round {done}, for none since was better"
    )
    return (
        f"round {fact['round']} is best on the validation samples: accuracy {percent(fact['accuracy'])} "
        f"on the test set{early}"
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
