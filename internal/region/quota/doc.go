// Package quota divides limits among regions. Each region has a part by its weight, counts by itself, and never asks
// another: together they admit no more than the limit. The weights are those of a [Table], or follow the demand.
//
// A limit is divided into whole units ([Part]). The parts of a limit add up to it exactly, on every node alike, since
// all nodes have the same table. While a table is changed, node by node, the sum may be above the limit by what the old
// and the new weights differ.
//
// # Weights that follow demand
//
// For asks with [stint.Policy].Follow, [Weights] move units to where they are asked for, each minute. They are kept
// in the database, which all regions share, for each rule, and apart for limits that take longer to recover. A
// request never waits for the database.
//
// The rules are:
//
//   - Weights change in two steps. A row first says what the weights are changing from and to. By such a row, a region
//     has the smaller one of its two parts: who loses has lost, and who gains has gained nothing yet. The second row, by
//     which all have their new parts, is written when the first one was in the database for [Valid], the time in which
//     such limits recover, and 5 s for what clocks differ and for takes on their way, by the clock of the database. That
//     time begins when a later transaction has found the row, since only then is it certain that everyone can read it.
//   - Until then the change may go elsewhere, by another first row from the same weights, whose time begins anew. It
//     does so for a minute, while demand is still moving, or if the table has changed.
//   - A node uses a row for Valid after it began to read it, by its own clock, and no longer. It reads every 5 s.
//   - A node that does not know the weights has the floor: 2 % of the limit and at least a unit; with more than three
//     regions, 4 % divided by the number of the others. No weight is ever below the floor, and no part below that of
//     the floor, so a node may always use it.
//   - No row means the weights of the table. A row is deleted only when it says the same. So the rows of a rule that
//     nobody has asked for in 10 to 20 minutes first go back to the weights of the table, in two steps.
//
// No region has to acknowledge anything. One that is cut off from the database has the floor after Valid at the
// latest, and others do not wait longer for it than for anyone else.
//
// # Proof
//
// Let u, v, w be weights that follow each other. For a limit, P(u) are the parts of the regions, which add up to the
// limit, as P(v) and P(w) do. By the first row of a change from u to v, regions have min(P(u), P(v)), region by region.
//
// Say that the first row from u to v could be read by all from the time s on, and that the second was written at b. By
// the rules, b is at least s + Valid + R + 5 s, where R is the time to recover. A node that uses the row before, with u,
// began to read it before s, and so uses it until before s + Valid. No node uses v before b. So for more than R between
// the two, every region has at most min(P(u), P(v)). Hence in a time of R, the regions have at most P(u) all the time, or
// at most P(v) all the time, whichever rows their nodes use, and whenever they began to. Other first rows from u, to
// weights that never came into force, change nothing of this, and neither does the floor, which is below all of them.
//
// A window of a fixed_window or sliding_log is not longer than R, and for a sliding_window R is two windows, so that
// what is carried is of the same weights, too. A region admits no more in a window than its largest part in it. So all
// regions together admit no more than the limit. That windows begin at different times, because clocks differ by up to
// 5 s, is within the 5 s.
//
// For buckets, let a region lose the part d of the whole rate r and the whole capacity c. It may have used d*c more
// than it holds from now on. But for R, which is c/r, at least, nobody has gained its rate, and so d*r*R >= d*c less has
// drained than the whole limit allows. So in any time T, all regions admit at most c + r*T, as one bucket does. (Parts
// are whole units: the parts of a burst are in proportion to those of the rate but for less than a unit, and so there is
// at most one unit more for each region. In a leaky_bucket each region also has the slot that is free at once.)
//
// What has no bound R does not follow, and has the fixed weights of the table: periods of the calendar, limits
// that take more than [MaxRecovery] to recover, and concurrency, whose holders may renew what they hold. Neither do
// limits with fewer units than regions.
//
// # What it relies on
//
//   - The clock of the database goes at the pace of time while a change is under way, and clocks of stores differ by less
//     than 5 s. A process that is suspended, clock and all, or a take that takes more than 5 s, may use weights that are
//     too old.
//   - The database does not lose what it has committed. After a failover to a standby that was behind, the sum may be
//     above the limit until nodes have read it and limits have recovered.
//   - All nodes have the same table. A region that is new in it has no part where weights follow demand, until a change
//     has given it one, which takes as long as any change. If it cannot read the database, it has the floor, which is then
//     beyond the limit.
//
// A change of a rule's limits needs no care: the weights stay, and the parts are those of the new limit.
//
// # Bounds
//
// 1,024 rules follow demand on a node; others have the floor. The database has 4,096 rows of weights at most, and a
// row of demand for each rule and node that has reported in the last 10 minutes. Limits of a rule whose time to recover is
// up to 10 s, 1, 2 or 10 minutes, 1 or 2 hours share their weights. For up to a minute, a region with all the demand
// has 95 % of the limit after three minutes; for others after as much longer.
package quota
