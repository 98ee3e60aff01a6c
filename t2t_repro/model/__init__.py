"""The model of the paper's section 3, in its order and notation, as Keras 3 layers."""
