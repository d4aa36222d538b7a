"""Cost and use of a plan's option: columns of plan.parquet that one fleet gives."""

from typing import Annotated

from simserve.metrics.answers.struct import (
    FINITE,
    Column,
    Kwh,
    Share,
    Struct,
    Tokens,
    UsdPerHour,
    UsdPerMTokens,
    WholeUsd,
    titled,
)
from simserve.metrics.summary_schema import Measured


class OptionCost(Struct):
    """The price of a fleet, and its power."""

    usd_per_gpu_hour: UsdPerHour = titled("Price (USD a GPU-hour)")
    """[USD/h] Price of a GPU."""
    usd_per_hour: UsdPerHour = None
    """[USD/h] Price of all GPUs; null if it misses the goal, as all costs."""
    usd_per_month: WholeUsd = titled("Cost a month (USD)")
    """[USD] Cost of a month of 730 hours."""
    usd_per_month_low: WholeUsd = None
    """[USD] Cost a month of the smallest fleet on the edge; of this fleet if there is none."""
    usd_per_month_high: WholeUsd = None
    """[USD] Cost a month of this fleet."""
    usd_per_m_output_tokens: UsdPerMTokens = titled("Per million output tokens (USD)")
    """[USD per million tokens] Cost of answers."""
    usd_per_m_tokens: UsdPerMTokens = titled("Per million tokens (USD)")
    """[USD per million tokens] Cost of prompts and answers."""
    usd_per_m_good_tokens: UsdPerMTokens = titled("Per million good tokens (USD)")
    """[USD per million tokens] Cost of answers of requests that met every limit."""
    usd_per_m_good_tokens_low: UsdPerMTokens = None
    """[USD per million tokens] Low end of its 95% interval across seeds; null with one seed."""
    usd_per_m_good_tokens_high: UsdPerMTokens = None
    """[USD per million tokens] High end of its 95% interval across seeds; null with one seed."""
    tdp_w: Annotated[Measured, FINITE, Column("amount", "float", "W")] = None
    """[W] Power of one card, by the data sheet."""
    kwh_per_month: Kwh = titled("Energy a month (kWh)")
    """[kWh] Energy at full power while a step runs."""
    kwh_per_month_at_tdp: Kwh = None
    """[kWh] Energy at full power all the time."""
    gpu_hours_per_month: Annotated[Measured, FINITE, Column("whole", "float", "GPU h")] = titled("GPU-hours a month")
    """[GPU h] GPU-hours of a month."""
    kwh_per_m_output_tokens: Annotated[Measured, FINITE, Column("amount", "float", "kWh per million tokens")] = None
    """[kWh per million tokens] `kwh_per_month` over the answers."""


class OptionUse(Struct):
    """What the whole fleet does at the mean demand."""

    output_tokens_per_month: Tokens = None
    """[tokens] Tokens of answers, at the mean demand with all replicas up."""
    tokens_per_month: Tokens = None
    """[tokens] Tokens of prompts and answers, at the mean demand with all replicas up."""
    good_tokens_per_month: Tokens = None
    """[tokens] Tokens of answers of requests that met every limit, at the mean demand."""
    busy_frac: Share = titled("Busy (share)")
    """[share] Time with a step in progress, at the mean demand with all replicas up."""
