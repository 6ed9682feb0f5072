"""The final summary of a run, as text."""

from collections.abc import Callable

from ..measures import ACCURACY, measure_of
from .result import Result
from .schema import PartySum, RoundRecord
from .stopping import absences, evaluated, evaluation_of

FURTHER: dict[
    str, Callable[[float], str]
] = {  # further metrics of the last round, by their fields in a record
    "macro_f1": lambda value: f"macro-F1 {ACCURACY.text(value)}",
    "balanced_accuracy": lambda value: f"balanced accuracy {ACCURACY.text(value)}",
    "r2": lambda value: f"R2 {value:.3f}",
}


def summarise_result(result: Result) -> str:
    """Return a few lines about the result of a run."""
    last = result.rounds[-1]
    best = result.best
    measure = result.measure
    std_value = getattr(last, measure.std)
    std = "" if std_value is None else f" ± {measure.std_text(std_value)} over parties"
    lines = [
        f"{measure.name} {measure.text(measure.value(last))}{std} "
        f"after round {last.round}{mark(result, last)} "
        f"(best {measure.text(measure.value(best))} in round {best.round}{mark(result, best)}); "
        f"results in {result.directory}"
    ]
    lines += summarise_absences(result)
    further = [describe(last[key]) for key, describe in FURTHER.items() if key in last]
    if further:
        lines.append(", ".join(further))
    if measure.by_party in last:
        lines += summarise_party_models(last)
    if last.sites is not None:
        lines.append(summarise_parties(last, last.sites, result.names))
    if result.chosen is not None:
        lines.append(summarise_selection(result, result.chosen))
    if result.experiment.dp.is_private:
        lines.append(summarise_privacy(result))
    return "\n".join(lines)


def summarise_privacy(result: Result) -> str:
    """Describe the guarantee of the final model, and what it does not cover."""
    exp = result.experiment
    rounds = len(result.rounds)
    guarantee = exp.dp.guarantee(exp.sample_fraction, rounds)
    text = (
        f"privacy of one party with all its samples after round {rounds}: {guarantee}; it holds "
        "for the model, not for the records in the run directory"
    )
    caution = exp.dp.caution()
    return f"{text}\n{caution}" if caution else text


def summarise_party_models(record: RoundRecord) -> list[str]:
    """Describe the distribution over parties that have their own models, and who gains by them."""
    measure = measure_of(record)
    lines = [f"personal models: {describe_distribution(record, measure.by_party)}"]
    if record.global_score is not None:
        value = f"{measure.name} {measure.text(record.global_score)}"
        distribution = describe_distribution(record, "global_party_score")
        gains, losses = gains_and_losses(record)
        lines.append(f"global model: {value}, {distribution}")
        lines.append(f"the personal model is better at {gains} parties and worse at {losses}")
    return lines


def describe_distribution(record: RoundRecord, key: str) -> str:
    """Describe mean, standard deviation and worst 10 % of the measure over the parties."""
    measure = measure_of(record)
    mean = measure.text(record[key])
    std = measure.std_text(record[f"{key}_std"])
    worst = measure.text(record[f"{key}_worst"])
    return f"mean over parties {mean} ± {std}, worst 10 % of parties {worst}"


def gains_and_losses(record: RoundRecord) -> tuple[int, int]:
    """Return at how many parties the party's own model is better than the global one, or worse."""
    measure = measure_of(record)
    gains = losses = 0
    reference = record.global_sites or {}
    for party, sums in (record.sites or {}).items():
        if party in reference:
            own, other = measure.from_sums([sums]), measure.from_sums([reference[party]])
            gains += measure.is_better(own, other)
            losses += measure.is_better(other, own)
    return gains, losses


def mark(result: Result, record: RoundRecord) -> str:
    """Return the mark of a round that was evaluated without some sites; empty for others."""
    parties = absences(result.rounds).get(record.round)
    if not parties:
        return ""
    return f", evaluated without {', '.join(party_name(i, result.names) for i in parties)}"


def party_name(party: int, names: tuple[str, ...]) -> str:
    """Return the name of a party, or its number."""
    return names[party] if names else f"party {party}"


def summarise_absences(result: Result) -> list[str]:
    """Describe the rounds that were evaluated without some sites, and compare the last one."""
    records = evaluated(result.rounds)
    incomplete = [str(number) for number in absences(records)]
    if not incomplete:
        return []
    lines = [
        f"rounds evaluated without all sites: {', '.join(incomplete)}; "
        f"their {result.measure.name} is not that of the other rounds' samples"
    ]
    last = evaluation_of(records[-1])
    best = evaluation_of(result.best)
    if last.lacks_sites_of(best) and last.sites:
        lines.append(
            f"on the sites that evaluated round {records[-1].round}, round {result.best.round} has "
            f"{last.measure.text(best.value_at(last.sites))}"
        )
    return lines


def summarise_parties(
    record: RoundRecord, sites: dict[str, PartySum], names: tuple[str, ...]
) -> str:
    """Describe the range of the measure on the parties' held-out samples."""
    measure = measure_of(record)
    values = []
    for party, sums in sites.items():
        values.append((measure.from_sums([sums]), party_name(int(party), names)))
    low, low_name = min(values)
    high, high_name = max(values)
    return (
        f"on the held-out samples of {len(sites)} parties: lowest {measure.text(low)} "
        f"({low_name}), highest {measure.text(high)} ({high_name})"
    )


def summarise_selection(result: Result, selected: RoundRecord) -> str:
    """Describe the round that was selected on validation data."""
    measure = result.measure
    done = len(result.rounds)
    early = ""
    if done < result.experiment.rounds:
        early = f"; stopped after round {done} because no later round was better"
    return (
        f"round {selected.round} has the best validation {measure.name}; "
        f"its {measure.name} on the test set is {measure.text(measure.value(selected))}{early}"
    )
