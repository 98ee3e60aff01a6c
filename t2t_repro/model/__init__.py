"""The paper's section 3, in its order and letters, as Keras 3 layers."""
