package catalogtest

import "fmt"

// Fill gives a PostgreSQL database the catalog of a large service: so many rules, and so many users, each with an API
// key. A tenth of the users have changed. It writes to the tables, by statements that exec executes, since that takes
// seconds instead of hours.
func Fill(exec func(statement string), rules, users int) {
	run := func(statement string, args ...any) { exec(fmt.Sprintf(statement, args...)) }
	run(`insert into stint_tiers select 'tier' || n, jsonb_build_object('name', 'tier' || n), 1, now(), now(), 'scale' from generate_series(1, 5) n`)
	run(`insert into stint_rules select 'rule' || n, jsonb_build_object('name', 'rule' || n, 'match', jsonb_build_object('paths', jsonb_build_array('/area' || n %% 100 || '/thing' || n)),
		'count_by', jsonb_build_array('user'), 'limits', jsonb_build_array(jsonb_build_object('name', 'limit', 'limit', '100/1h'))), 1, now(), now(), 'scale' from generate_series(1, %d) n`, rules)
	const piece = 50_000
	for from := 1; from <= users; from += piece {
		to := min(from+piece-1, users)
		run(`insert into stint_users (id, body, version, created_at, updated_at, updated_by)
			select 'user' || n, jsonb_build_object('id', 'user' || n, 'tier', 'tier' || n %% 5 + 1, 'tenant', 'tenant' || n %% 1000), 1, now(), now(), 'scale' from generate_series(%d, %d) n`, from, to)
		run(`insert into stint_api_keys (id, body, version, created_at, updated_at, updated_by)
			select 'key' || n, jsonb_build_object('id', 'key' || n, 'user', 'user' || n, 'hash', 'sha256:' || lpad(to_hex(n), 64, '0')), 1, now(), now(), 'scale' from generate_series(%d, %d) n`, from, to)
	}
	run(`insert into stint_changes select n, 0, 'stamp' || n, now(), 'someone' || n %% 10, 'user', 'user' || n, null, '{}' from generate_series(1, %d) n`, users/10)
	run(`update stint_catalog set revision = %d, stamp = 'stamp%d'`, users/10, users/10)
}
