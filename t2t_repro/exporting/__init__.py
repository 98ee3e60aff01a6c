"""Exports of a run for serving: TensorFlow's SavedModel, CTranslate2, Hugging Face, ONNX."""
