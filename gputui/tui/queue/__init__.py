"""Models of the queue pane: rows, columns, order, folds and tabs."""
