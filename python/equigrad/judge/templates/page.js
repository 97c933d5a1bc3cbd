// Adds to a page that is already whole: buttons that copy a script, and the opening of what a link points into.
(function(){
'use strict';
var all=function(q){return Array.prototype.slice.call(document.querySelectorAll(q));};
var said=document.createElement('p');said.className='vh';said.setAttribute('role','status');document.body.appendChild(said);
var select=function(pre){var range=document.createRange();range.selectNodeContents(pre);
var now=getSelection();now.removeAllRanges();now.addRange(range);};
all('.code').forEach(function(box){
var pre=box.querySelector('pre'),button=document.createElement('button');
button.type='button';button.textContent='Copy';button.setAttribute('aria-label','Copy the '+pre.getAttribute('aria-label').toLowerCase());
var done=function(ok){button.textContent=ok?'Copied':'Press Ctrl+C';said.textContent=ok?'The script was copied':'Press Control C to copy';
if(!ok)select(pre);setTimeout(function(){button.textContent='Copy';},2500);};
button.onclick=function(){
if(navigator.clipboard&&isSecureContext)navigator.clipboard.writeText(pre.textContent).then(function(){done(true);},function(){done(false);});
else{select(pre);var ok=false;try{ok=document.execCommand('copy');}catch(e){}done(ok);}};
box.insertBefore(button,pre);});
var follow=function(){var target=location.hash.length>1&&document.getElementById(decodeURIComponent(location.hash.slice(1)));
if(!target)return;var d=target.closest('details');if(d)d.open=true;target.scrollIntoView();};
addEventListener('hashchange',follow);follow();
})();
