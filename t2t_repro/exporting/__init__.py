"""A run written for others to serve: TensorFlow's SavedModel, CTranslate2."""
