"""The inbox by model: what it says of a few messages (``rows``), and the steps that befall them."""
