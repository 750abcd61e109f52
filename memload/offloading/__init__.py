"""memload.offload: `offload` moves a frozen module to a device and back, its `weights` whole or `layerwise`."""
