//go:build torture

package torture

// Enabled says whether figures are judged.
const Enabled = true
