"""The stores. `contract` is what every store promises; `memory` is the specification."""
