"""Search for hyperparameters with Optuna: many workers, an exact budget, and a winner only where seeds that the search
never saw confirm it."""
