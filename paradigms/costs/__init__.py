"""What a cell will cost before it is run: operations, bytes, seconds and memory, from its config alone.

    decoder.forwards(model, batch)      which forwards there will be: shapes
    model.counts(shape)                 their operations and bytes, by formula
    device.forward_s(model, shape)      how long one takes: a calibrated machine, or a datasheet
    predict(...)                        sums them: time to first token, time a token, the whole, peak memory

`python -m paradigms.costs` calibrates this machine, predicts cells, finds where two paradigms change places and holds
the model against published measurements. Constants come from calibration cells or datasheets, never from what is
predicted.
"""
