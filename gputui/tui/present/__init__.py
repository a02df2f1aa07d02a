"""Domain to cells: pure functions, no widget and no clock. What a job or a person wrote is never interpreted here."""
