// The documentation of the APIs, at /docs: what their OpenAPI documents say, without a token.

import '../app.css'
import { mount } from 'svelte'
import { theme } from '../lib/theme.svelte'
import Docs from './Docs.svelte'

theme.start()
mount(Docs, { target: document.getElementById('app')! })
