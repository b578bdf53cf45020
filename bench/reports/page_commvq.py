"""docs/reports/commvq.md: the choices behind CommVQ's codes: values by a search instead of the paper's network, keys by tables of few entries."""

from quality_measurements import Measurement
from quality_texts import LEARNED, PROSE

KEY_HEADS = 8
VALUE_HEADS = 2  # take a minute each by 1,500 steps of the encoder


def keys_of(model, options):
    return Measurement("key_tables", model, (), None, PROSE, (options.windows, KEY_HEADS))


def values_of(model, options):
    return Measurement("value_codes", model, (), None, PROSE + LEARNED, (options.windows, VALUE_HEADS, options.encoder_steps))


def measurements(options):
    return [measure(model, options) for measure in (values_of, keys_of) for model in options.model_names]
