// Package region has several regions share limits. A rule says how (stint.Policy.Regions):
//
//   - central: the counter is in one region, which the others ask. While that is out of reach, a node decides by
//     its share of what remained: of the region's part, by weight, which its nodes share.
//   - quota: each region has a part of the limit (package quota).
//   - gossip: each region counts by itself and tells the others (package gossip).
//
// All other counters are those of the region itself. [Store] is what decides; [Links] carries what regions tell each
// other.
package region
