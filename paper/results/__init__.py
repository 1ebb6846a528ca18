"""The paper's fits, tables and claims beside what was run here."""
