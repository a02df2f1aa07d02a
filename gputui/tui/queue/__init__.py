"""What the queue's pane shows: rows, columns, order, folds and tabs."""
