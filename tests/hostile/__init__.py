"""The hostile-input suite: every reader and every Flower message with mutated and malicious inputs.

harness.py runs cases in limited processes and judges them, mutations.py changes valid inputs,
readers.py and messages.py list what is read, regressions.py has inputs that once failed.
"""
