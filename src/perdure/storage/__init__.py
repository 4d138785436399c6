"""The stores. `contract` says what every one of them promises; `memory` is the specification."""
