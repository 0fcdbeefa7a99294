"""Chat models: tasks of questions and answers, and what else the model could do before."""
