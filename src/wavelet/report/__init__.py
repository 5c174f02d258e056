"""How results are shown and kept: tables and progress on a terminal, JSON files, and what they were measured on."""
