"""The paper's networks, data sets, recipes and tables. Start with `reproduce.py`; nothing here
downloads by itself.
"""
