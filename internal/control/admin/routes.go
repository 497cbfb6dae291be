package admin

// addAll registers all operations.
func (a *API) addAll() {
	a.addDocument()
	a.addSession()
	a.addTokens()
	a.addRules()
	a.addResources()
	a.addApply()
	a.addSubjects()
	a.addExplain()
	a.addRecord()
	a.addLive()
	a.addHouse()
	a.addEnvoy()
	a.addChanges()
}
