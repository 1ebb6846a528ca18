"""The paper's networks, data sets, recipes and tables. Start with `reproduce`; nothing here downloads by itself."""
