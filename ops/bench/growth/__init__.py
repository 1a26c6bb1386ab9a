"""Growth: what a store of many runs costs a node, measured on real facts."""

from rookery.ops.bench.growth.growth import Growth, GrowthRow, measure_growth

__all__ = ["Growth", "GrowthRow", "measure_growth"]
