"""Checks of what a site reports about its data and software.

It comes from a message, or from the partition.json of a stored run.
"""

import math

import torch
from torch import Tensor

from ..data.columns import MAX_LENGTH
from ..data.moments import Moments, statistics_shape
from ..runs import schema
from ..runs.directory import versions
from .refusals import RefusedError, sanitize

MAX_SAMPLES = 2**40
MAX_SIDE = 2**31  # of a sample's shape
CHANGED_DATA = "its data are not the data it had when the run started"


def check_version(site_version: str | None) -> None:
    """Check that a site has the server's version of moonfl."""
    version = versions()["moonfl"]
    if site_version != version:
        raise RefusedError(
            f"it has moonfl {sanitize(str(site_version))}, the server {version}; "
            "install the same version"
        )


def check_site(site: schema.SiteRecord, parties: int) -> None:
    """Check the numbers that a site reports about itself; `parties` is the number of parties."""
    if site.party >= parties:
        raise RefusedError(
            f"it claims to be party {site.party}; parties are numbered 0 to {parties - 1}"
        )
    if any(side >= MAX_SIDE for side in site.shape):
        raise RefusedError(
            f"party {site.party} reports samples of shape {sanitize(str(site.shape))}; "
            f"every dimension must be less than {MAX_SIDE}"
        )
    names = len(site.features)
    if names > 0 and (site.shape != [names] or len(set(site.features)) < names):
        raise RefusedError(
            f"party {site.party} reports {names} column names for samples of shape "
            f"{sanitize(str(site.shape))}; every feature must have a name of its own"
        )
    check_sample_counts(site)
    for size in (site.held_out, site.validation):
        if size >= MAX_SAMPLES:
            raise RefusedError(
                f"party {site.party} reports {size} held-out samples; it must be less than "
                f"{MAX_SAMPLES}"
            )
    if site.moments is not None:
        read_moments(site)
    if site.targets is not None:
        read_target_moments(site)
    if site.columns is not None:
        check_columns(site, site.columns)


def check_sample_counts(site: schema.SiteRecord) -> None:
    """Check the numbers of training samples that a site reports.

    If it reports their number apart from the counts, these are of labels, or of regression targets.
    """
    plausible = all(count < MAX_SAMPLES for count in site.counts) and site.num_samples > 0
    if not plausible or not 0 < len(site.counts) == len(site.classes):
        raise RefusedError(
            f"party {site.party} must report one sample count for each of its "
            f"{len(site.classes)} classes, each less than {MAX_SAMPLES} and not all 0"
        )
    if site.samples is not None and not max(site.counts) <= site.samples < MAX_SAMPLES:
        raise RefusedError(
            f"party {site.party} reports {site.samples} samples; it must be less than "
            f"{MAX_SAMPLES} and not less than the samples with a label"
        )


def check_columns(site: schema.SiteRecord, columns: list[schema.ColumnRecord]) -> None:
    """Check what a site reports about the columns of its table."""
    rows = site.num_samples
    fits = len(columns) == len(site.features) > 0
    if not fits or not all(is_plausible(column, rows) for column in columns):
        raise RefusedError(
            f"party {site.party} must report for each of its {len(site.features)} columns how many "
            f"of its {rows} training rows have a value, and a finite mean and squares >= 0, or "
            f"the rows of each category, whose names have at most {MAX_LENGTH} characters"
        )


def is_plausible(column: schema.ColumnRecord, rows: int) -> bool:
    """Return True if what a site reports about a column can be true."""
    if column.number + column.missing != rows:
        return False
    if column.counts is not None:
        names_fit = all(0 < len(name) <= MAX_LENGTH for name in column.counts)
        return names_fit and sum(column.counts.values()) == column.number
    variance = column.squares / max(1, column.number)
    values = torch.tensor([column.mean, variance], dtype=torch.float64)
    return variance >= 0 and fits_float32(torch.stack([values[0], values[1].sqrt()]))


def read_moments(site: schema.SiteRecord) -> Moments:
    """Return the sums that a site shares for standardisation: a count, and a value per feature."""
    shape = tuple(site.shape)
    features = math.prod(statistics_shape(shape))
    values = math.prod(shape) // features * site.num_samples  # values per feature
    moments = plausible_moments(site.moments, values, features)
    if moments is None:
        raise RefusedError(
            f"party {site.party} must report number, mean and squares of its features: {values} "
            f"values for each of {features} features, finite, squares >= 0"
        )
    return moments


def read_target_moments(site: schema.SiteRecord) -> Moments:
    """Return the sums that a site shares to standardise the targets of a regression."""
    moments = plausible_moments(site.targets, site.num_samples, len(site.classes))
    if moments is None:
        raise RefusedError(
            f"party {site.party} must report number, mean and squares of its {len(site.classes)} "
            "targets, finite, squares >= 0"
        )
    return moments


def plausible_moments(record: schema.Moments | None, number: int, features: int) -> Moments | None:
    """Return the sums in a record; None if they cannot be those of so many values per feature."""
    if record is None or record.number != number:
        return None
    mean = torch.tensor(record.mean, dtype=torch.float64)
    squares = torch.tensor(record.squares, dtype=torch.float64)
    std = (squares / max(1, number)).sqrt()  # NaN if squares are negative
    fits = mean.shape == squares.shape == (features,)
    if not (fits and fits_float32(mean) and fits_float32(std)):
        return None
    return Moments(number, mean, squares)


def fits_float32(values: Tensor) -> bool:
    """Return True if all values are finite in float32."""
    return bool((values.abs() <= torch.finfo(torch.float32).max).all())
