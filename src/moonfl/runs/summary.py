"""The final summary of a run, as text."""

from .recorder import Result
from .schema import RoundRecord
from .stopping import absent_parties, evaluation_of


def summarise_result(result: Result) -> str:
    """Return a few lines about the result of a run."""
    last = result.rounds[-1]
    best = result.best
    std = "" if last.accuracy_std is None else f" ± {100 * last.accuracy_std:.1f} over parties"
    lines = [
        f"accuracy {percent(last.accuracy)}{std} after round {last.round}{mark(result, last)} "
        f"(best {percent(best.accuracy)} in round {best.round}{mark(result, best)}); "
        f"results in {result.directory}"
    ]
    lines += summarise_absences(result)
    if last.macro_f1 is not None and last.balanced_accuracy is not None:
        balanced = percent(last.balanced_accuracy)
        lines.append(f"macro-F1 {percent(last.macro_f1)}, balanced accuracy {balanced}")
    if last.party_accuracy is not None:
        lines.append(summarise_personal_models(last))
    if last.sites is not None:
        lines.append(summarise_parties(last.sites, result.names))
    if result.chosen is not None:
        lines.append(summarise_selection(result, result.chosen))
    return "\n".join(lines)


def summarise_personal_models(record: RoundRecord) -> str:
    """Describe the distribution of accuracy over parties that have personal models."""
    mean = percent(record.party_accuracy or 0)
    std = 100 * (record.party_accuracy_std or 0)
    worst = percent(record.party_accuracy_worst or 0)
    return f"personal models: mean over parties {mean} ± {std:.1f}, worst 10 % of parties {worst}"


def mark(result: Result, record: RoundRecord) -> str:
    """Return the mark of a round that was evaluated without some sites; empty for others."""
    parties = absent_parties(record, result.rounds)
    if not parties:
        return ""
    return f", evaluated without {', '.join(party_name(i, result.names) for i in parties)}"


def party_name(party: int, names: tuple[str, ...]) -> str:
    """Return the name of a party, or its number."""
    return names[party] if names else f"party {party}"


def summarise_absences(result: Result) -> list[str]:
    """Describe the rounds that were evaluated without some sites, and compare the last one."""
    records = result.rounds
    incomplete = [str(r.round) for r in records if absent_parties(r, records)]
    if not incomplete:
        return []
    lines = [
        f"rounds evaluated without all sites: {', '.join(incomplete)}; their accuracy is not that "
        "of the other rounds' samples"
    ]
    last = evaluation_of(records[-1])
    best = evaluation_of(result.best)
    if last.lacks_sites_of(best) and last.sites:
        lines.append(
            f"on the sites that evaluated round {records[-1].round}, round {result.best.round} has "
            f"{percent(best.accuracy_at(last.sites))}"
        )
    return lines


def summarise_parties(sites: dict[str, tuple[int, int]], names: tuple[str, ...]) -> str:
    """Describe the range of the accuracies on the parties' held-out samples."""
    accuracies = []
    for party, (hits, samples) in sites.items():
        accuracies.append((hits / samples, party_name(int(party), names)))
    low, worst = min(accuracies)
    high, best = max(accuracies)
    return (
        f"on the held-out samples of {len(sites)} parties: lowest {percent(low)} ({worst}), "
        f"highest {percent(high)} ({best})"
    )


def summarise_selection(result: Result, selected: RoundRecord) -> str:
    """Describe the round that was selected on validation data."""
    done = len(result.rounds)
    early = ""
    if done < result.experiment.rounds:
        early = f"; stopped after round {done} because no later round was better"
    return (
        f"round {selected.round} has the best validation accuracy; its accuracy on the test set is "
        f"{percent(selected.accuracy)}{early}"
    )


def percent(share: float) -> str:
    """Format a share as per cent."""
    return f"{100 * share:.1f} %"
