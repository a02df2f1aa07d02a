"""Domain objects as cells: pure functions, no widgets and no clock. Foreign text is never interpreted as markup."""
