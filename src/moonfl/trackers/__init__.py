"""Trackers: copy the metrics of a run to TensorBoard, Weights & Biases or MLflow."""
