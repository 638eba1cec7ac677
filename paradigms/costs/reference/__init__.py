"""The cost model held against measurements that others have published; README.md says where those come from.

rows            the figures                     models         the networks behind them
derived         constants, from a few of them   predictions    all others, predicted
table           both sides
"""
