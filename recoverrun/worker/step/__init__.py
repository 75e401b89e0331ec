"""One transaction: the driver, protection, guarantee, reporter, failpoints."""
